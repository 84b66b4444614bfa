import { useMutation } from '@tanstack/react-query';
import { useCallback } from 'react';

/** Runs something that a person asked for, and keeps its error for showing. `run` says whether it was done. */
export function useAction() {
  const { isPending: isBusy, error, mutateAsync } = useMutation({ mutationFn: (work: () => Promise<unknown>) => work() });
  const run = useCallback((work: () => Promise<unknown>) => mutateAsync(work).then(() => true, () => false), [mutateAsync]);
  return { isBusy, error: error ?? undefined, run };
}
