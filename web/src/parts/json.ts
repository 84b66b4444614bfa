/** Where a text stops being JSON, counted from 1; `undefined` where it is JSON. */
export interface JsonFault {
  line: number;
  column: number;
}

const SPACE = /[ \t\n\r]*/y;
const STRING = /"(?:[^"\\\p{Cc}]|\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))*/uy;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const WORD = /(?:true|false|null)\b/y;

export function jsonFault(text: string): JsonFault | undefined {
  let at = 0;
  const take = (pattern: RegExp): boolean => {
    pattern.lastIndex = at;
    const isThere = pattern.test(text);
    if (isThere) at = pattern.lastIndex;
    return isThere;
  };
  const sign = (wanted: string): boolean => {
    take(SPACE);
    if (text[at] !== wanted) return false;
    at += 1;
    return true;
  };
  const string = (): boolean => {
    take(SPACE);
    return take(STRING) && sign('"');
  };
  const member = (): boolean => string() && sign(':') && value();
  const items = (close: string, item: () => boolean): boolean => {
    if (sign(close)) return true;
    do if (!item()) return false; while (sign(','));
    return sign(close);
  };
  const value = (): boolean => {
    if (sign('{')) return items('}', member);
    if (sign('[')) return items(']', value);
    return text[at] === '"' ? string() : take(NUMBER) || take(WORD);
  };
  const isJson = value();
  take(SPACE);
  if (isJson && at === text.length) return undefined;
  const before = text.slice(0, at).split('\n');
  return { line: before.length, column: (before.at(-1) ?? '').length + 1 };
}
