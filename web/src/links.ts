/** Where links lead. A part that is not named is left out of the address. */
import { linkOptions } from '@tanstack/react-router';

export const toChat = (conversation?: string) => linkOptions({ to: '/chat/{-$conversation}', params: { conversation } });
export const toApprovals = (approval?: string) => linkOptions({ to: '/approvals/{-$approval}', params: { approval } });
export const toConnections = (agent?: string) => linkOptions({ to: '/connections/{-$agent}', params: { agent } });
/** A part of the administration, and an entry, an agent or a user in it. */
export const toAdmin = (part?: string, item?: string) => linkOptions({ to: '/admin/{-$part}/{-$item}', params: { part, item } });
