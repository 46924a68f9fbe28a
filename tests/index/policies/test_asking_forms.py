"""Kinds of pairs that ask for the same in another form, and pairs of the same kinds that need different answers."""

import pytest

from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.guards import ADDITIONS, GUARDS
from kvproxy.index.policies.policy import Neighbour
from kvproxy.index.policies.wording import without_courtesies
from tests.index.doubles import OverlapVerifier
from tests.index.policies.test_guards import read

SAME = read("""
numbers: Is the shop open until nine? ~ Is the shop open until 9?;
    How do I set up 2-factor login? ~ How do I set up two-factor login?
times: Is the museum open on Saturdays? ~ Is the museum open on Saturday?;
    When are you open on Fridays? ~ What are your opening hours on Friday?;
    Are you closed on Mondays? ~ Are you closed on Monday?;
    What time does the pool open on Sundays? ~ When does the pool open on Sunday?;
    Can I park here on Sunday mornings? ~ Can I park here on Sunday morning?;
    Is the clinic open in the evenings? ~ Is the clinic open in the evening?;
    Do trains run on Wednesdays and Thursdays? ~ Do trains run on Wednesday and Thursday?;
    When are you open on Saturday afternoons? ~ When are you open on Saturday afternoon?;
    What are your office hours on Tuesdays? ~ When are you open on Tuesday?;
    Is there a market on Thursdays? ~ Is there a market on Thursday?
durations: How many days does a refund take? ~ How long does a refund take?;
    How many weeks does it take to get a passport? ~ How long does it take to get a passport?;
    How many hours does the battery last? ~ How long does the battery last?;
    How many business days does delivery to Norway take? ~ How long does shipping to Norway take?;
    How many minutes does the test take? ~ How long does the test take?;
    How many months does the training last? ~ How long does the training last?;
    How many days will the repair take? ~ How long will the repair take?;
    How many years did the war last? ~ How long did the war last?;
    How many working days does a transfer take? ~ How long does a transfer take?;
    How many seconds does a restart take? ~ How long does a restart take?
clauses: Can I change my order after it has shipped? ~ Can I change my order after shipping?;
    Is it possible to edit a post after it has been published? ~ Can I edit a post after it is published?;
    Can I return it after I have opened the box? ~ Can I return it after opening the box?;
    Can I cancel a booking after it has been confirmed? ~ Is it possible to cancel a booking after confirming?;
    Do I get a receipt after the order has been paid? ~ Do I get a receipt after paying the order?;
    Can I rename a file once it has been uploaded? ~ Can I rename a file after uploading it?;
    Is it possible to change the name after I have registered? ~ Can I change the name after registering?;
    Can I add guests after they have accepted? ~ Can I add guests after accepting?;
    Is it allowed to leave after we have finished? ~ May I leave after finishing?;
    Can I upgrade after the trial has ended? ~ Can I upgrade after ending the trial?
courtesies: Can you please explain the refund process to me? ~ Can you explain the refund process?;
    Could you kindly describe your services? ~ Describe your services;
    Please explain recursion to me. ~ Explain recursion.;
    Would you summarize this article for me please? ~ Summarise this article;
    Could you explain to me how taxes work? ~ Explain how taxes work;
    Can you please list the planets? ~ List the planets; Could you define inflation for me? ~ Define inflation;
    Will you please compare the two plans for me? ~ Compare the two plans;
    Could you please outline the main steps? ~ Outline the main steps;
    Can you kindly clarify the second clause for me? ~ Clarify the second clause
services: Which cards are accepted? ~ What cards do you accept?;
    What languages do you support? ~ Which languages are supported?; Are cheques accepted? ~ Do you accept cheques?;
    Which courses are offered? ~ What courses do you offer?;
    Do you offer student discounts? ~ Are student discounts offered?;
    Are pets allowed in the rooms? ~ Do you allow pets in the rooms?;
    Do you cover water damage? ~ Is water damage covered?;
    Which file formats are supported? ~ Which file formats do you support?;
    Do you refund shipping costs? ~ Are shipping costs refunded?; Which sizes do you stock? ~ What sizes are stocked?
places: Where can I find my API key? ~ Where is my API key?; Where do I find the settings? ~ Where are the settings?;
    Where can we find the toilets? ~ Where are the toilets?;
    Where could I find the user manual? ~ Where is the user manual?;
    Where can I find my order number? ~ Where is my order number?; Where do we find the exit? ~ Where is the exit?;
    Where can I find the list of branches? ~ Where is the list of branches?;
    Where would I find the serial number? ~ Where is the serial number?;
    Where can I locate the tracking code? ~ Where is the tracking code?;
    Where do I find your terms? ~ Where are your terms?
periods: Where is my June invoice? ~ Where can I find my invoice for June?;
    How do I download the report for 2024? ~ How do I download the 2024 report?;
    When is the Q3 report out? ~ When is the report for Q3 out?;
    What was the rent for April? ~ What was the April rent?;
    Can I get the statement for December? ~ Can I get the December statement?;
    Where is the schedule for October? ~ Where is the October schedule?;
    How do I read my bill for July? ~ How do I read my July bill?;
    Is the calendar for 2026 out? ~ Is the 2026 calendar out?;
    Can I change the roster for August? ~ Can I change the August roster?;
    How high was the budget of 2023? ~ How high was the 2023 budget?
shipping: Do you ship to Norway? ~ Do you deliver to Norway?; Can you deliver to Peru? ~ Do you ship to Peru?;
    How much are shipping costs? ~ How much are delivery costs?;
    What shipping options are there? ~ What delivery options are there?; Is delivery free? ~ Is shipping free?;
    How do I change the delivery address? ~ How do I change the shipping address?;
    What are your delivery fees? ~ What are your shipping fees?;
    How long does shipping to Spain take? ~ How long does delivery to Spain take?;
    Which delivery methods do you offer? ~ Which shipping methods are offered?;
    Is shipping to Ireland free? ~ Is delivery to Ireland free?
rules: Can you explain your cancellation policy? ~ What is your cancellation policy?;
    Tell me about your privacy policy ~ What is your privacy policy?;
    Describe the refund policy ~ What is the refund policy?;
    What are the house rules? ~ Can you tell me the house rules?;
    Could you outline your payment terms? ~ What are your payment terms?;
    Please explain the return policy to me ~ What's your return policy?;
    Could you tell me about your warranty policy? ~ What is the warranty policy?;
    Clarify your pet policy, please ~ What is your pet policy?; What are your terms? ~ Explain your terms;
    Would you please describe your delivery policy? ~ What is your delivery policy?
""")
DIFFERENT = read("""
numbers: Is the shop open until nine? ~ Is the shop open until 8?; How do I set up 2-factor login? ~ Is there 3-factor login?;
    Is this the second one? ~ Is this the 2 one?
times: Is the museum open on Saturdays? ~ Is the museum open on Sundays?;
    When are you open on Fridays? ~ What are your opening hours on Monday?;
    Are you closed on Mondays? ~ Are you closed this Monday?; Are you open on Sundays? ~ Are you open today?;
    Can I park here on Sunday mornings? ~ Can I park here on Sunday evenings?;
    Is the clinic open in the evenings? ~ Is the clinic open in the mornings?;
    Do trains run on Wednesdays? ~ Do trains run on weekends?; When are you open on Sundays? ~ When are you open?;
    When do you open on Saturdays? ~ What are your closing hours on Saturday?;
    Is there a market on Thursdays? ~ Was there a market on Thursday?
durations: How many days a week does the course take? ~ How long does the course take?;
    How many hours per day does the training last? ~ How long does the training last?;
    How many days are left? ~ How long are the days?;
    How many people does the trip take? ~ How long does the trip take?;
    How many pages does the test take? ~ How long does the test take?;
    How many weeks of leave do I get? ~ How long is the week?;
    How many days does a refund take? ~ How much does a refund take?;
    How many days does a refund take? ~ How often does a refund take days?;
    How many hours does the battery last? ~ How many batteries does it take?;
    How many times does it take to work? ~ How long does it take to work?
clauses: Can I cancel my order after it has shipped? ~ Can I cancel my order before it has shipped?;
    Can I cancel my order after it has shipped? ~ Could I cancel my order until it ships?;
    Is it open after lunch? ~ Was it open after lunch?;
    What happens after it has closed? ~ What happened after it closed?; Has the order shipped? ~ Is the order shipping?;
    Do I pay after they have delivered? ~ Did I pay after they have delivered?;
    Who owns it after the war? ~ Who owned it after the war?;
    Can I edit a post after I have published it? ~ Can she edit a post after I have published it?;
    Is it possible to pay after I have eaten? ~ Is it possible to pay while eating?;
    Must I register after I have arrived? ~ May I register after arriving?
courtesies: Explain the risk to me ~ Explain the risk; Compare the taxes for US ~ Compare the taxes;
    Describe the best job for me ~ Describe the best job;
    List the shops close to me ~ List the shops close; Explain what happened to me ~ Explain what happened;
    Explain the refund process to a child ~ Explain the refund process;
    Can you explain recursion? ~ Can I explain recursion?;
    Please explain the second clause ~ Please explain the third clause;
    Could you list the planets? ~ Could you list the moons?; Why can you explain this? ~ Explain this;
    How do I please my boss? ~ How do I annoy my boss?
services: Which cards are accepted? ~ Which cards do you reject?; Is my claim accepted? ~ Do you accept my claim?;
    Is it supported? ~ Do you support it?;
    Which cities do you visit? ~ Which cities are visited?; Are cheques accepted? ~ Do they accept cheques?;
    Do you accept cheques? ~ Who accepts cheques?; Do you cover water damage? ~ Is fire damage covered?;
    Do you allow pets? ~ Are pets not allowed?; Are student discounts offered? ~ Do you offer senior discounts?;
    Which languages do you support? ~ Which languages did you support?;
    Do you refund shipping costs? ~ Are shipping costs not refunded?; Do you accept returns? ~ Why are returns accepted?
places: Where can I find my API key? ~ Where can I change my API key?;
    Where do I find the settings? ~ What are the settings?; Where can I find a doctor? ~ Where can I see a doctor?;
    Where can we find the toilets? ~ When can we find the toilets?;
    Where can I find my order number? ~ Where is my invoice number?; Where do I find the exit? ~ Where is the entrance?;
    Where can she find her key? ~ Where is my key?; How do I find the serial number? ~ Where is the serial number?;
    Where did I find the code? ~ Where is the code?; Where can I find my key? ~ Where can I find your key?
periods: Where is my June invoice? ~ Where can I find my invoice for July?;
    How do I download the report for 2024? ~ How do I download the 2025 report?;
    When is the Q3 report out? ~ When is the report for Q4 out?;
    What was the rent for April? ~ What was the April bill?;
    Can I get the statement for December? ~ Can I get the statement from December?;
    Where is the schedule for October? ~ Where is the schedule until October?;
    How do I read my bill for July? ~ How do I pay my July bill?;
    Is the calendar for 2026 out? ~ Was the 2026 calendar out?;
    Do I pay the invoice for March 5? ~ Do I pay the March invoice?;
    Where is my invoice for June? ~ Where is my invoice?
shipping: Do you ship to Norway? ~ Do you deliver to Sweden?; Has my order shipped? ~ Has my order been delivered?;
    What is the shipping date? ~ What is the delivery date?; Do you ship to Norway? ~ Do you ship from Norway?;
    How much are shipping costs? ~ How much are return costs?;
    How do I change the delivery address? ~ How do I change the billing address?;
    When was it shipped? ~ When was it delivered?; Is delivery free? ~ Is delivery fast?;
    Do you ship to Norway? ~ Did you ship to Norway?;
    How long does shipping to Spain take? ~ How much does delivery to Spain cost?
rules: Can you explain your cancellation policy? ~ What is your privacy policy?;
    Why is your policy so strict? ~ What is your policy?; Explain their refund policy ~ What is your refund policy?;
    Explain your refund policy briefly ~ What is your refund policy?;
    Who wrote your privacy policy? ~ What is your privacy policy?;
    Can I explain your refund policy? ~ What is your refund policy?; Explain the house rules ~ Explain the house prices;
    Explain my policy ~ What is your policy?; When did your refund policy change? ~ What is your refund policy?;
    Explain your refund policy for shoes ~ What is your refund policy for hats?
""")


def is_served(question: str, stored: str) -> bool:
    policy = CheckedPolicy(OverlapVerifier(), 0.999, 0.6)
    return policy.decide(question, [Neighbour(stored, 0.7)]).chosen is not None


@pytest.mark.parametrize("kind", SAME.keys() - {"clauses"})
def test_another_form_of_asking_is_served(kind: str) -> None:
    missed = [pair for pair in SAME[kind] if not is_served(*pair) or not is_served(*reversed(pair))]
    assert not missed


def test_no_guard_vetoes_a_clause_with_another_form() -> None:
    for one, other in SAME["clauses"]:
        assert not [
            guard.name for guard in (*GUARDS, ADDITIONS) if guard.vetoes(one, other) or guard.vetoes(other, one)
        ]


@pytest.mark.parametrize("kind", DIFFERENT)
def test_near_misses_of_these_forms_are_refused(kind: str) -> None:
    assert DIFFERENT.keys() == SAME.keys()
    served = [pair for pair in DIFFERENT[kind] if is_served(*pair) or is_served(*reversed(pair))]
    assert not served


def test_the_verifier_reads_no_courtesies() -> None:
    assert without_courtesies("Can you please explain the fees to me?") == "Can you explain the fees?"
    policy = CheckedPolicy(OverlapVerifier(), 0.8, 0.6)
    scores = [policy.probability(text, "Is the bank open?", 0.9) for text in ("Is it, please, open?", "Is it open?")]
    assert scores[0] == scores[1]
