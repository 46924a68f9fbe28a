"""Words that stand in each other's place: whoever swaps one for another asks something else."""

_GROUPS = """
country: India|China|France|Germany|Canada|Australia\
|Japan|Russia|Pakistan|Brazil|Spain|Italy|Mexico|Iran|Israel|Turkey|Poland|Norway|Sweden|Egypt
city: London|Paris|Berlin|Tokyo|Mumbai|Delhi|Bangalore|Chennai\
|New York|Chicago|Boston|Seattle|Toronto|Sydney|Rome|Madrid|Vienna|Dubai
company: Google|Microsoft|Apple|Amazon|Facebook|Uber|Netflix|Tesla|IBM|Oracle|Intel|Samsung|Twitter|Infosys|TCS|Accenture
site: Quora|Reddit|YouTube|Instagram|WhatsApp|Snapchat|LinkedIn|Gmail|Tinder|Pinterest|Dropbox|GitHub|Slack|Zoom
person: Donald Trump|Hillary Clinton|Barack Obama\
|Narendra Modi|Elon Musk|Bill Gates|Steve Jobs|Mark Zuckerberg|Albert Einstein|Isaac Newton
tongue: English|French|German|Spanish|Japanese|Chinese|Hindi|Russian|Italian|Arabic|Korean|Tamil|Portuguese|Dutch
programming: Python|Java|JavaScript|Rust|Go|Kotlin|Swift|Ruby|PHP|Scala|Perl|Haskell|TypeScript|C#
system: Windows|Linux|macOS|Android|iOS|Ubuntu|Debian|Fedora
database: MySQL|PostgreSQL|SQLite|MongoDB|Redis|Cassandra|MariaDB|DynamoDB
tool: Docker|Kubernetes|Terraform|Ansible|Jenkins|Nginx|Apache|Kafka|Git|Vim|Emacs
phone: iPhone|Samsung Galaxy|Google Pixel|OnePlus|Xiaomi|Nokia|Motorola
currency: dollars|euros|pounds|rupees|yen|francs|pesos
length: miles|kilometres|metres|feet|inches|yards|centimetres
mass: kilograms|pounds|ounces|grams|stones|tons
temperature: Celsius|Fahrenheit|Kelvin
storage: bytes|kilobytes|megabytes|gigabytes|terabytes|bits
duration: seconds|minutes|hours|days|weeks|months|years
month: January|February|March|April|June|July|August|September|October|November|December
weekday: Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday
day: today|tomorrow|yesterday
sport: football|cricket|tennis|basketball|baseball|hockey|golf|chess|rugby|badminton
subject: physics|chemistry|biology|mathematics|economics|history|geography|psychology|philosophy|law|medicine|statistics
animal: dog|cat|horse|rabbit|hamster|parrot|turtle|snake|goldfish
food: rice|pasta|chicken|eggs|bread|potatoes|beans|salmon|spinach|broccoli
drink: coffee|tea|wine|beer|milk|water
body: knee|shoulder|back|neck|ankle|wrist|hip|elbow|foot
relative: father|mother|brother|sister|son|daughter|wife|husband|boss|teacher|neighbour
planet: Mercury|Venus|Mars|Jupiter|Saturn|Uranus|Neptune
element: iron|copper|gold|silver|zinc|lead|aluminium|oxygen|nitrogen|hydrogen|carbon
instrument: guitar|piano|violin|drums|flute|saxophone|cello
colour: red|blue|green|yellow|black|white|purple|orange
exam: GRE|GMAT|SAT|CAT|IELTS|TOEFL|GATE|UPSC
degree: MBA|PhD|bachelor's|master's|diploma
protocol: HTTP|FTP|SSH|SMTP|DNS|TCP|UDP|IMAP|MQTT
code: max_tokens|top_p|temperature|timeout|retries|batch_size|num_workers|learning_rate|max_len|chunk_size
method: append()|extend()|insert()|remove()|pop()|sort()|reverse()|count()|index()|copy()
flag: --port|--host|--verbose|--quiet|--force|--dry-run|--output|--config|--user
path: /etc/hosts|/etc/passwd|/var/log|/tmp|/v1/models|/v1/chat/completions|/health|/metrics
status: 200|301|400|401|403|404|409|418|429|500|502|503
type: list|dict|tuple|set|string|array|queue|stack
role: CEO|CTO|president|vice president|mayor|governor|treasurer|secretary
"""

_SAME = """
buy/purchase fix/repair begin/start fast/quick quickly/fast picture/photo picture/image big/large error/problem
difficult/hard choose/pick job/position kids/children movie/film require/need obtain/get receive/get find/locate
improve/enhance show/display permit/allow finish/complete help/assist wrong/incorrect phone/mobile car/automobile
doctor/physician smart/intelligent scared/afraid ill/sick shut/close answer/reply speak/talk company/firm
vacation/holiday lawyer/attorney price/cost salary/pay delete/erase remove/erase make/create verify/check
configure/set_up install/set_up mend/repair reduce/decrease employ/hire gift/present rich/wealthy happy/glad
"""


def _groups() -> dict[str, tuple[str, ...]]:
    lines = (line.split(": ", 1) for line in _GROUPS.strip().splitlines())
    return {name: tuple(members.split("|")) for name, members in lines}


def _synonyms() -> dict[str, str]:
    table: dict[str, str] = {}
    for pair in _SAME.split():
        one, other = (word.replace("_", " ") for word in pair.split("/"))
        table[one] = other
        table.setdefault(other, one)
    return table


GROUPS = _groups()
"""Kind of thing -> its members. No answer about one member serves another."""

SYNONYMS = _synonyms()
"""Word -> a word that may replace it in a question without changing what is asked."""
