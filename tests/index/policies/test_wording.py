"""Questions that are equal apart from spelling mistakes and the form of asking are served."""

import pytest

from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.policy import Neighbour
from kvproxy.index.policies.wording import correct_spelling, normal_wording
from tests.index.doubles import OverlapVerifier


@pytest.mark.parametrize(
    ("question", "stored"),
    [
        ("When do I recieve the money?", "When do I receive the money?"),
        ("Do you charge for emergancy plumbing?", "Do you charge for emergency plumbing?"),
        ("Is there step-free acess to the platfrom?", "Is there step-free access to the platform?"),
        ("How can I merge two files?", "How do I merge two files?"),
        ("Could you tell me how to water a cactus?", "How should I water a cactus?"),
        ("I was wondering whether you ship to Norway.", "Do you ship to Norway?"),
        ("I am new to this. What is a hash map?", "What's a hash map?"),
        ("yeah can I um order food?", "Can I order food?"),
        ("I can't open the file, what now?", "I cannot open the file, what now?"),
        ("What time does the pool close?", "When does the pool close?"),
        ("How long does it usually take to grow basil?", "How long does it take to grow basil?"),
        ("Sorry to bother you, but how do I bleed a radiator?", "How do I bleed a radiator?"),
        ("Morning! Silly question: is rice gluten-free?", "Is rice gluten-free?"),
        ("so how do i read my childs report", "How do I read my child's report?"),
        ("Who is the author of Emma?", "Who wrote Emma?"),
        ("What is the height of K2?", "How tall is K2?"),
        ("How much does a new boiler cost?", "What's the price of a new boiler?"),
        ("Who can I call about a leak?", "Who should I call about a leak?"),
        ("What is the best way to freeze soup?", "How do I freeze soup?"),
        ("Where is the archive located?", "Where is the archive?"),
        ("What is the meaning of RSVP?", "What does RSVP mean?"),
        ("Which is the largest harbour?", "What is the largest harbor?"),
        ("What if the pump fails?", "What happens if the pump fails?"),
        ("How do I enable export?", "How can I turn on export?"),
        ("Can guests comment?", "Are guests able to comment?"),
        ("Is there a free trial?", "Do you offer a free trial?"),
        ("Can I switch off reminders?", "Can I disable reminders?"),
        ("What's your refund policy?", "What is the refund policy?"),
        ("When are your opening hours?", "When are the opening hours?"),
        ("How fast does support answer?", "How quickly does support answer?"),
        ("How large is the limit?", "How big is the limit?"),
        ("How much time does a refund take?", "How long does a refund take?"),
        ("How regularly are backups made?", "How often are backups made?"),
        ("can u refund ur customers", "Can you refund your customers?"),
        ("whats the refund policy", "What is the refund policy?"),
        ("how do i prune the carots", "How do I prune the carrots?"),
        ("May I bring my dog?", "Am I allowed to bring my dog?"),
        ("Is it OK to bring my dog?", "Can I bring my dog?"),
        ("Do I have to wear a helmet?", "Must I wear a helmet?"),
        ("If it rains, is the tour cancelled?", "Is the tour canceled if it rains?"),
        ("In which languages is the tour offered?", "In what languages is the tour offered?"),
        ("I'd like to book a room, how does that work?", "How do I book a room?"),
        ("What do I have to do to cancel my rental?", "How do I cancel my rental?"),
        ("cost of a basic service", "How much do I have to pay for the basic service?"),
        ("What do you charge for a basic service?", "How much would a basic service be?"),
        ("How much is it to rent a bike?", "How much does it cost to rent a bike?"),
        ("How much is renting a bike?", "How much does it cost to rent a bike?"),
    ],
)
def test_an_equal_question_is_served(question: str, stored: str) -> None:
    policy = CheckedPolicy(OverlapVerifier(), 0.999, 0.6)
    assert policy.decide(question, [Neighbour(stored, 0.7)]).chosen == 0
    assert policy.decide(stored, [Neighbour(question, 0.7)]).chosen == 0


@pytest.mark.parametrize(
    ("question", "stored"),
    [
        (
            "What is the dose of hydroxyzine?",
            "What is the dose of hydralazine?",
        ),  # No common words, so both may be names.
        ("Who is Jonh Smyth?", "Who is John Smith?"),
        ("Does it form a salt?", "Does it from a salt?"),  # Both are words.
        ("How do I pay?", "What do I pay?"),
        ("Can you pay me?", "Can I pay you?"),
        ("Who is the author of Emma?", "Who is the editor of Emma?"),
        ("What time is it?", "When is it?  Say yes."),
        ("How much is a boiler?", "How big is a boiler?"),
        ("How do I turn on export?", "How do I disable export?"),
        ("How do I turn down the volume?", "How do I turn on the volume?"),
        ("What is your name?", "What is the name?"),
        ("Are guests unable to comment?", "Can guests comment?"),
        ("Do you have a dog?", "Is there a dog?"),
        ("What is your refund policy?", "What is their refund policy?"),
        ("What is your weight?", "What is the weight?"),
        ("How quickly does support answer?", "How often does support answer?"),
        ("How quickly can I travel?", "How long can I travel?"),
        ("How much time is left?", "How much is left?"),
        ("The tenant smokes. May I object?", "The tenant smoked. May I object?"),
        ("Is the museum open on Mondays?", "Are museums open on Mondays?"),
        ("I want to sleep.", "How do I sleep?"),
        ("Can I bring my dog?", "Must I bring my dog?"),
        ("If it rains, is it open?", "If it is open, does it rain?"),
    ],
)
def test_another_word_is_no_spelling_mistake(question: str, stored: str) -> None:
    assert correct_spelling(question, stored) == question
    assert normal_wording(question) != normal_wording(stored)
