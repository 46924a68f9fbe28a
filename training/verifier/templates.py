"""Questions with slots: `{city}` takes a member of that group of words, `{n}` a number, `{yes|no}` either word."""

_TEMPLATES = """
How do I {enable|disable} two-factor authentication on {site}?
How do I {enable|disable} dark mode on {system}?
How do I {enable|disable} automatic updates in {system}?
How do I {turn on|turn off} notifications on {site}?
How do I {turn on|turn off} location on my {phone}?
How do I {add|remove} a user {to|from} {database}?
How do I {install|uninstall} {tool} on {system}?
How do I {start|stop} a {tool} container?
How do I {upgrade|downgrade} {programming} on {system}?
How do I {upload|download} a file with {protocol}?
How do I {import|export} data {into|from} {database}?
How do I {encrypt|decrypt} a file on {system}?
How do I {lock|unlock} my {phone}?
How do I {increase|decrease} {code}?
How do I {open|close} port {n} on {system}?
How do I {block|unblock} someone on {site}?
How do I {activate|deactivate} my {site} account?
How do I {create|delete} a {site} account?
How do I {follow|unfollow} a topic on {site}?
How do I {grant|revoke} access to a table in {database}?
How do I {encode|decode} base64 in {programming}?
How do I {compress|decompress} a folder on {system}?
How do I {show|hide} hidden files on {system}?
How do I {gain|lose} weight in {n} {duration}?
How do I {buy|sell} shares of {company}?
How do I {raise|lower} my blood pressure?
How do I {send|receive} money from {country}?
How do I sort a {type} in {ascending|descending} order in {programming}?
How do I convert {length} to {length}?
How do I convert {mass} to {mass}?
How do I convert {temperature} to {temperature}?
How do I convert {currency} to {currency}?
How do I convert {storage} to {storage}?
How do I convert a {type} to a {type} in {programming}?
How do I translate {tongue} to {tongue}?
How do I migrate from {database} to {database}?
How do I switch from {system} to {system}?
How do I move from {country} to {country}?
How do I travel from {city} to {city}?
How do I call a {programming} function from {programming}?
How do I connect to {database} from {programming}?
How do I reset my {site} password?
How do I learn {tongue} in {n} {duration}?
How do I learn {programming}?
How do I learn to play the {instrument}?
How do I cook {food}?
How do I train a {animal}?
How do I treat {body} pain?
How do I prepare for the {exam} in {n} {duration}?
How do I apply for a visa for {country}?
How do I get a job at {company}?
How do I set {code} to {n}?
How do I use {flag} with {tool}?
How do I use {flag} and {flag} together?
How do I use {method} on a list in {programming}?
How do I read {path} in {programming}?
How do I return a {status} from an API?
How do I tell my {relative} the truth?
What does {method} do in {programming}?
What does the {flag} flag do?
What does {code} do?
What does the {status} status code mean?
What does {path} return?
What is {path} for?
What is the capital of {country}?
What is the population of {city}?
What is the currency of {country}?
What is the distance from {city} to {city}?
What is the weather in {city} {day}?
What is the weather in {city} on {weekday}?
What is the best time to visit {country}?
What is the {best|worst} time to visit {city}?
What is the {maximum|minimum} value of {code}?
What is the {largest|smallest} city in {country}?
What is the {highest|lowest} score on the {exam}?
What is the {cheapest|most expensive} flight to {city} in {month}?
What is the boiling point of {element}?
What is the melting point of {element}?
What is the atomic number of {element}?
What is the default port of {database}?
What is the square root of {n}?
What is {n} plus {n}?
What is {n} percent of {n}?
What is {n} {length} in {length}?
What is {n} {mass} in {mass}?
What is {n} {currency} in {currency}?
What is new in {programming} {version}?
What is new in {database} {version}?
What is the release date of {system} {version}?
What is the price of the {phone} {n}?
What are the {advantages|disadvantages} of {programming}?
What are the {advantages|disadvantages} of living in {country}?
What are the {causes|effects} of {body} pain?
What are the {symptoms|causes} of {body} pain?
What are the {benefits|risks} of drinking {drink}?
What are the {pros|cons} of working at {company}?
What are the {strengths|weaknesses} of {database}?
What are the opening hours on {weekday}?
What are the public holidays in {month}?
What happened in {year}?
What happened on {month} {n}?
Who is the {role} of {company}?
Who is {person}?
Who won the {sport} world cup in {year}?
Who was the president in {year}?
Why is {person} so popular?
Why does my {body} hurt when I run?
Why does my {animal} not eat?
Why do people {like|dislike} {site}?
When is the next flight to {city}?
When was {company} founded?
Where can I study {subject} in {country}?
Where can I buy {food} in {city}?
Is it {safe|dangerous} to drink {drink} {before|after} running?
Is it {legal|illegal} to own a {animal} in {country}?
Is {programming} {faster|slower} than {programming}?
Is {subject} {harder|easier} than {subject}?
Is {city} {bigger|smaller} than {city}?
Is {food} {good|bad} for a {animal}?
Is {company} {open|closed} on {weekday}?
Does {database} support transactions?
Does {tool} run on {system}?
Can a {animal} eat {food}?
Can I take {element} {with|without} food?
Can my {relative} borrow money from my {relative}?
Should I eat {before|after} exercise?
Should I learn {programming} before {programming}?
Did {country} invade {country}?
Did {company} sue {company}?
How many {length} are in a {length}?
How many people live in {country}?
How many {duration} are in {n} {duration}?
How far is {planet} from {planet}?
How old is {person}?
How much does a {degree} in {subject} cost in {country}?
How much water should I drink {before|after} {sport}?
How long does it take to drive from {city} to {city}?
Write a function in {programming} that returns the {first|last} element of a {type}.
Write a poem about the colour {colour}.
Write a {short|long} story about a {animal}.
Translate "good morning" into {tongue}.
Summarise the plot in {n} sentences.
List {n} facts about {planet}.
Give me {n} ideas for a birthday present for my {relative}.
Book a table for {n} people on {weekday}.
Set a timer for {n} {duration}.
Remind me {day} to call my {relative}.
"""

TEMPLATES = tuple(_TEMPLATES.strip().splitlines())
