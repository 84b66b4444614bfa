import { Button, TextField } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { ThumbsDown, ThumbsUp } from 'lucide-react';
import { useState } from 'react';
import { api, read, Refused, type Schemas } from '../api/client';
import { queries } from '../api/queries';
import { IconAction } from '../parts/IconAction';
import { Failure } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useTexts } from '../texts/texts';
import type { Message } from './thread';

type Feedback = Schemas['Feedback'];

const RATINGS = { up: ThumbsUp, down: ThumbsDown } as const;

/** What the reader thinks of an answer: a thumb, and perhaps a word. The same thumb once more takes it back. */
export function FeedbackButtons({ message, isNear }: { message: Message; isNear: boolean }) {
  const { say } = useTexts();
  const path = { id: message.conversation_id, message: message.id };
  const queryKey = ['/v1/conversations/{id}/messages/{message}/feedback', path];
  const { data } = useQuery({ queryKey, queryFn: () => readFeedback(path), enabled: isNear, staleTime: Infinity });
  const [isAsking, setIsAsking] = useState(false);
  const { isBusy, error, run } = useAction();
  const give = (feedback: Feedback) => run(async () => {
    await read(api.PUT('/v1/conversations/{id}/messages/{message}/feedback', { params: { path }, body: feedback }));
    queries.setQueryData(queryKey, feedback);
  });
  const takeBack = () => run(async () => {
    await read(api.DELETE('/v1/conversations/{id}/messages/{message}/feedback', { params: { path } }));
    queries.setQueryData(queryKey, null);
  });
  const press = (rating: Feedback['rating']) => {
    const isGiven = data?.rating === rating;
    setIsAsking(!isGiven);
    void (isGiven ? takeBack() : give({ rating }));
  };
  return (
    <>
      {(['up', 'down'] as const).map((rating) => {
        const Icon = RATINGS[rating];
        const isGiven = data?.rating === rating;
        return (
          <IconAction key={rating} label={say(`feedback.${rating}`)} color={isGiven ? 'cyan' : 'gray'} aria-pressed={isGiven} disabled={isBusy} onClick={() => press(rating)}>
            <Icon size={16} />
          </IconAction>
        );
      })}
      {data && isAsking && (
        <Comment given={data.comment ?? ''} isBusy={isBusy} onCancel={() => setIsAsking(false)} onSend={(comment) => void give({ ...data, comment }).then((done) => setIsAsking(!done))} />
      )}
      <Failure error={error} />
    </>
  );
}

function Comment({ given, isBusy, onCancel, onSend }: {
  given: string;
  isBusy: boolean;
  onCancel: () => void;
  onSend: (comment: string) => void;
}) {
  const { say } = useTexts();
  const [text, setText] = useState(given);
  return (
    <form className="comment" onSubmit={(event) => { event.preventDefault(); onSend(text.trim()); }}>
      <TextField.Root
        aria-label={say('feedback.comment')} placeholder={say('feedback.comment')} maxLength={2000} value={text}
        onChange={(event) => setText(event.target.value)} onKeyDown={(event) => { if (event.key === 'Escape') onCancel(); }}
      />
      <Button type="submit" disabled={isBusy || !text.trim()}>{say('send')}</Button>
    </form>
  );
}

/** Without feedback the API answers 404. */
async function readFeedback(path: { id: string; message: string }): Promise<Feedback | null> {
  try {
    return await read(api.GET('/v1/conversations/{id}/messages/{message}/feedback', { params: { path } }));
  } catch (error) {
    if (error instanceof Refused && error.status === 404) return null;
    throw error;
  }
}
