import { Card, Grid, Text } from '@radix-ui/themes';
import { useTexts } from '../texts/texts';

/** Numbers that sum something up, each under its name. */
export function Totals({ children }: { children: [name: string, value: number][] }) {
  const { language } = useTexts();
  return (
    <Grid asChild columns="repeat(auto-fit, minmax(9rem, 1fr))" gap="3">
      <dl>
        {children.map(([name, value]) => (
          <Card asChild key={name}>
            <div><Text asChild size="1" color="gray"><dt>{name}</dt></Text><Text asChild size="5" weight="medium"><dd className="number">{value.toLocaleString(language)}</dd></Text></div>
          </Card>
        ))}
      </dl>
    </Grid>
  );
}
