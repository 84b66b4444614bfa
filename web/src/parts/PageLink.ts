import { Link } from '@radix-ui/themes';
import { createLink } from '@tanstack/react-router';

/** A link to another page of ours. */
export const PageLink = createLink(Link);
