/** The program's name, with its mark: a key. */
export function Brand() {
  return (
    <span className="brand">
      <svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true" fill="none" stroke="currentColor" strokeWidth="2" strokeLinecap="round" strokeLinejoin="round">
        <circle cx="8" cy="8" r="5" />
        <path d="m11.5 11.5 9 9M16 16l3-3M19.5 19.5l1.5-1.5" />
      </svg>
      <span>Chatelaine</span>
    </span>
  );
}
