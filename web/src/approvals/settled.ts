/** A button that decides about money takes no click before it has stood where it is for a second. */
import { type PointerEvent, type SyntheticEvent, useCallback, useEffect, useRef, useState } from 'react';

/** Milliseconds. */
const REST = 1000;

let shakenAt = -REST;

/** Everything on the page may lie under the pointer now that was elsewhere before: the page itself has scrolled. */
export function shake() {
  shakenAt = performance.now();
}

/**
 * Where the card of an element stands on its page. A person who scrolls moves the page, and not the card on it; one who
 * opens the details of a card knows which card it is.
 */
function placeOf(node: Element): string {
  const { top, left } = (node.closest('article, .waiting') ?? node).getBoundingClientRect();
  const scrolled = node.closest('.page, .thread')?.scrollTop ?? 0;
  return `${Math.round(top + scrolled + window.scrollY)} ${Math.round(left)}`;
}

/** Watches an element from its appearance on. `guard` goes around what must not be pressed by accident. */
export function useSettled<T extends Element>() {
  const ref = useRef<T>(null);
  const seen = useRef({ place: '', since: 0 });
  const isPressed = useRef(true);
  const [isSettled, setIsSettled] = useState(false);
  const look = useCallback(() => {
    if (!ref.current) return false;
    const [place, now] = [placeOf(ref.current), performance.now()];
    if (place !== seen.current.place) seen.current = { place, since: now };
    return now - Math.max(seen.current.since, shakenAt) >= REST;
  }, []);
  useEffect(() => {
    let frame = 0;
    const step = () => {
      setIsSettled(look());
      frame = requestAnimationFrame(step);
    };
    step();
    return () => cancelAnimationFrame(frame);
  }, [look]);
  const guard = {
    onPointerDownCapture: (_: PointerEvent) => {
      isPressed.current = look();
    },
    // A keyboard and a program press without a pointer.
    onClickCapture: (event: SyntheticEvent<Element, MouseEvent>) => {
      const wasPressed = event.nativeEvent.detail === 0 || isPressed.current;
      if (look() && wasPressed) return;
      event.preventDefault();
      event.stopPropagation();
    },
  };
  return { ref, isSettled, guard };
}
