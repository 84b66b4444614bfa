/**
 * JSON as people check it. Two values that differ never look alike: what could be read as something else stands in
 * quotation marks, with an escape of JSON for each character that nobody sees or that passes for another one.
 */
import { writeJson } from '../api/digits';

/** What shows nothing, or turns the direction of a text; the joiners inside of an emoji aside. A blank is U+0020. */
const UNSEEN = String.raw`(?!(?<=\p{Extended_Pictographic}\ufe0f?\p{Emoji_Modifier}?)\u200d(?=\p{Extended_Pictographic})|(?<=\p{Extended_Pictographic})\ufe0f)[\p{DI}\p{C}\p{Zl}\p{Zp}\u2800]|(?! )\p{Zs}`;
const HAS_UNSEEN = new RegExp(UNSEEN, 'u');
const ALL_UNSEEN = new RegExp(UNSEEN, 'gu');
const PIECE = new RegExp(String.raw`${UNSEEN}|["\\]|[\p{L}\p{N}_][\p{L}\p{M}\p{N}_]*`, 'gu');
const FOREIGN = /[^ -~]/gu;

/** Alphabets with letters that look like those of another one. */
const ALPHABETS = ['Latin', 'Cyrillic', 'Greek', 'Armenian', 'Cherokee', 'Coptic', 'Lisu'].map((name) => new RegExp(`\\p{Script=${name}}`, 'u'));
const LOOKALIKES = new Map(Array.from(
  'аaсcԁdеeһhіiјjӏlоoрpԛqѕsуyхxѵvԝwАAВBСCЕEНHІIЈJКKМMОOРPЅSТTУYХXҮYӀlԜWοoνvαaρpιiυuχxγyκkηnΑAΒBΕEΖZΗHΙIΚKΜMΝNΟOΡPΤTΥYΧXօoսuհhոnցgՕOɑaɡgıi'.matchAll(/(.)(.)/gu),
  ([, letter = '', latin = '']) => [letter, latin],
));

/** Begins like a quoted text, a list, an object or an item of a list. */
const BEGINS_VALUE = /^(?:["'`\p{Pi}\p{Pf}\u201a\u201e\u2033\u02ba[{]|\d+\.\s)/u;
const WORDS = /^(?:null|true|false|undefined|nan|[-+]?infinity)$/i;
const NUMBER = /^[-+\u2212]?(?:0[box][\da-f]+|[\p{Nd}.,_' ]+(?:e[-+]?\p{Nd}+)?)$/iu;
const PLAIN_NAME = /^(?!\d+\.?$)[A-Za-z0-9_.-]+$/;
/** All but ASCII, and what of ASCII looks alike in many typefaces. */
const ALIKE = /[^ -~]|["\\]|[Il1|O0mw]|rn|vv/gu;

/** A value without members: a text as it is where nothing else could be meant, and anything else as JSON. */
export function valueText(value: unknown): string {
  if (typeof value !== 'string') return writeJson(value) ?? '';
  const digits = writeJson(value);
  if (digits && !digits.startsWith('"')) return digits;
  const quoted = quote(value);
  return isPlain(value) && quoted === `"${value.replace(/[\\"]/g, '\\$&')}"` ? value : quoted;
}

/** The names of the members of one object. */
export function nameTexts(names: string[]): string[] {
  const looks = names.map(lookOf);
  const wideLooks = looks.map((look) => look.replace(/[Il1|]/g, 'l').replace(/0/g, 'O').replace(/rn/g, 'm').replace(/vv/g, 'w'));
  const [alike, widelyAlike] = [count(looks), count(wideLooks)];
  return names.map((name, at) => {
    const [near, wide] = [alike.get(looks[at] ?? '') ?? 0, widelyAlike.get(wideLooks[at] ?? '') ?? 0];
    if (wide > near) return `"${name.replace(ALIKE, (found) => (/["\\]/.test(found) ? `\\${found}` : escape(found)))}"`;
    if (near > 1) return quote(name, true);
    return PLAIN_NAME.test(name) ? name : quote(name);
  });
}

function count(looks: string[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const look of looks) counts.set(look, (counts.get(look) ?? 0) + 1);
  return counts;
}

function isPlain(text: string): boolean {
  const read = toLatin(text.normalize('NFKC'));
  const digits = read.replace(/[Oo]/g, '0').replace(/[Il|]/g, '1');
  return text !== '' && !/^ | $| {2}/.test(text) && !HAS_UNSEEN.test(text) && !BEGINS_VALUE.test(read) && !BEGINS_VALUE.test(text)
    && !WORDS.test(read) && !WORDS.test(read.replace(/[I1|]/g, 'l')) && !(/\p{Nd}/u.test(read) && (NUMBER.test(read) || NUMBER.test(digits)));
}

/** As JSON has it, and broken into lines behind each `\n`. */
function quote(text: string, isSpelled = readsAsLatin(text)): string {
  const body = text.replace(PIECE, (piece) => {
    if (piece === '"' || piece === '\\') return `\\${piece}`;
    return piece.replace(isSpelled || isMixed(piece) ? FOREIGN : ALL_UNSEEN, escape);
  });
  return `"${body.replace(/\n$/, '')}"`;
}

function escape(characters: string): string {
  if (characters === '\n') return '\\n\n';
  if (characters === '\t') return '\\t';
  if (characters === '\r') return '\\r';
  return characters.split('').map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`).join('');
}

/** A word with letters of several alphabets, digits of several scripts, or marks that make another letter's look. */
function isMixed(word: string): boolean {
  if (!/[^ -~]/.test(word)) return false;
  const digits = /[A-Za-z0-9]/.test(word) && /(?![0-9])\p{Nd}/u.test(word);
  return digits || word !== word.normalize('NFC') || ALPHABETS.filter((alphabet) => alphabet.test(word)).length > 1;
}

/** A text in another alphabet of which each letter has the look of a Latin one. */
const readsAsLatin = (text: string) => /[^ -~\n\t]/.test(text) && !/[^ -~\n\t]/.test(toLatin(text));

const toLatin = (text: string) => text.replace(FOREIGN, (letter) => LOOKALIKES.get(letter) ?? letter);

const lookOf = (name: string) => toLatin(name.normalize('NFKC').replace(ALL_UNSEEN, '')).replace(/ /g, '');
