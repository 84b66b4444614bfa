/** JSON in which each number that a double would change is a text with its digits: people decide about such numbers. */
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const NUMBER = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/;
/** What no number that a double holds needs: many digits, or an exponent. */
const SUSPECT = /[\d.]{16}|\d[eE]/;
/** Begins a text that stands for a number. Random, so that no text of another can be taken for one. */
const MARK = `${crypto.getRandomValues(new Uint32Array(4)).join('-')}:`;

export function keepDigits(json: string): string {
  if (!SUSPECT.test(json)) return json;
  return json.replace(TOKEN, (token) => token.startsWith('"') || isExact(token) ? token : `"${MARK}${token}"`);
}

/** A value of such JSON as JSON, its numbers as they were written. */
export function writeJson(value: unknown, indent?: number): string | undefined {
  // A value that JSON does not have is no text.
  const json = JSON.stringify(value, null, indent) as string | undefined;
  return json?.includes(MARK) ? json.replace(TOKEN, (token) => (token.startsWith(`"${MARK}`) ? token.slice(MARK.length + 1, -1) : token)) : json;
}

function isExact(number: string): boolean {
  const value = decimal(number);
  return value !== undefined && value === decimal(String(Number(number)));
}

/** The same text for numbers of the same value. */
function decimal(text: string): string | undefined {
  const [, sign, whole, fraction = '', exponent = '0'] = NUMBER.exec(text) ?? [];
  if (whole === undefined) return undefined;
  const digits = (whole + fraction).replace(/^0+/, '');
  const short = digits.replace(/0+$/, '');
  return short && `${sign}${short}e${Number(exponent) - fraction.length + digits.length - short.length}`;
}
