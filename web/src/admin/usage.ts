/** What was used, as the pages of the administration show it. Days are UTC, as the limits count them. */

export const MEASURES = ['tokens', 'runs', 'calls'] as const;
export type Measure = (typeof MEASURES)[number];

export interface Used {
  name: string;
  tokens: number;
  runs: number;
  calls: number;
}

interface Line {
  runs: number;
  tool_calls: number;
  input_tokens: number;
  output_tokens: number;
}

export const usedOf = (name: string, line: Line): Used => ({
  name, tokens: line.input_tokens + line.output_tokens, runs: line.runs, calls: line.tool_calls,
});

const DAY = 86_400_000;
const dayOf = (at: number) => new Date(at).toISOString().slice(0, 10);

/** So many days, with today as the last one. */
export function lastDays(count: number): { since: string; until: string } {
  const now = Date.now();
  return { since: dayOf(now - (count - 1) * DAY), until: dayOf(now + DAY) };
}
