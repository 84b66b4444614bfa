import { createContext, useContext } from 'react';

/** The agent of the open conversation. Empty as long as it is not known. */
export const Agent = createContext('');

export const useAgent = () => useContext(Agent);
