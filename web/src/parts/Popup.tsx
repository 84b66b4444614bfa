import { type ReactNode, type Ref, useId, useState } from 'react';

/** What a button opens in the upper right corner; a click elsewhere or Escape closes it. A dialog inside has an end of its own. */
export function Popup({ label, button, ref, children }: {
  label: string;
  /** The button, which gets what makes it open. */
  button: (opens: { popoverTarget: string; 'aria-haspopup': 'dialog' }) => ReactNode;
  /** Closes it by `hidePopover`. */
  ref?: Ref<HTMLDivElement>;
  children: ReactNode;
}) {
  const id = useId();
  const [isOpen, setIsOpen] = useState(false);
  return (
    <>
      {button({ popoverTarget: id, 'aria-haspopup': 'dialog' })}
      <div ref={ref} id={id} popover="auto" role="dialog" aria-label={label} className="raised popup" onBeforeToggle={(event) => event.target === event.currentTarget && setIsOpen(event.newState === 'open')}>
        {isOpen && children}
      </div>
    </>
  );
}
