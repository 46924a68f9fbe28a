"""How often a question's language is told wrong: English questions of a file of pairs, and questions in other languages.

python -m tests.benchmarks.languages PAIRS.jsonl.gz
"""

import sys
import time
from pathlib import Path

from kvproxy.index.evaluation.labelled_pairs import read_pairs
from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.models.languages import ENGLISH, is_known

OTHERS = """
Hauptstadt Frankreich
Passwort zurücksetzen
Wie lange dauert die Lieferung?
Öffnungszeiten Berlin Filiale
Kann ich meine Bestellung stornieren?
Rechnung herunterladen
Ist der Versand kostenlos?
Wer hat das Telefon erfunden?
Quelle est la capitale de la France ?
Comment annuler ma commande ?
mot de passe oublié
Où trouver ma facture ?
Combien coûte la livraison ?
horaires magasin Paris
Peut-on payer en plusieurs fois ?
Qui a inventé le téléphone ?
¿Cómo cambio mi contraseña?
Como puedo cancelar mi pedido
¿Cuánto cuesta el envío?
capital de Francia
horario tienda Madrid
¿Quién inventó el teléfono?
Puedo pagar a plazos?
descargar factura
Как сменить пароль?
Столица Франции
Сколько стоит доставка?
Как отменить заказ?
Jak zmienić hasło?
Ile kosztuje dostawa?
stolica Francji
Czy mogę anulować zamówienie?
Kto wynalazł telefon?
godziny otwarcia sklepu
怎么重置密码？
法国的首都是哪里
运费多少钱？
パスワードを変更するには？
フランスの首都はどこですか
送料はいくらですか？
비밀번호를 어떻게 바꾸나요?
كيف أغير كلمة المرور؟
איך מחליפים סיסמה?
Come posso cambiare la password?
Qual è la capitale della Francia?
Quanto costa la spedizione?
Como faço para redefinir minha senha?
Qual é a capital da França?
Quanto custa o frete?
Hoe wijzig ik mijn wachtwoord?
Wat kost verzending?
Hur byter jag lösenord?
Hvordan endrer jeg passordet?
Miten vaihdan salasanan?
Şifremi nasıl değiştiririm?
Cum îmi schimb parola?
Hogyan változtatom meg a jelszavam?
Jak změním heslo?
Làm thế nào để đổi mật khẩu?
Bagaimana cara mengganti kata sandi?
Mera password kaise badle?
""".strip().splitlines()


def main() -> None:
    vocabulary = load_embedder().vocabulary
    pairs = list(read_pairs(Path(sys.argv[1])))
    questions = sorted({text for pair in pairs for text in (pair.a, pair.b)})
    began = time.process_time()
    known = {text: is_known(text, (ENGLISH,), vocabulary) for text in questions}
    each = (time.process_time() - began) / len(questions)
    strange = sum(not (known[pair.a] and known[pair.b]) for pair in pairs) / len(pairs)
    print(f"{len(questions)} questions, {each * 1e6:.0f} us each")
    print(
        f"taken for another language: {1 - sum(known.values()) / len(questions):.2%} of them, {strange:.2%} of the pairs"
    )
    missed = [text for text in OTHERS if is_known(text, (ENGLISH,), vocabulary)]
    print(f"taken for English: {len(missed)} of {len(OTHERS)} in other languages: {', '.join(missed)}")


if __name__ == "__main__":
    main()
