/** Of the styles of Radix Themes, those that the page uses. All of them are 86 KB compressed; these are 19. */
import postcss, { type ChildNode, type Rule } from 'postcss';
import type { Plugin } from 'vite';

const STYLES = /@radix-ui\/themes\/(components|utilities|tokens\/.*)\.css$/;
/** The components whose styles are kept: how the names of their classes begin. */
const COMPONENTS = [
  'Badge', 'BaseButton', 'BaseCard', 'BaseCheckbox', 'BaseTabList', 'Box', 'Button', 'Callout', 'Card',
  'CheckboxIndicator', 'CheckboxRoot', 'Code', 'DataList', 'Flex', 'Grid', 'Heading', 'IconButton', 'Link',
  'SelectTrigger', 'Spinner', 'Strong', 'Table', 'Tabs', 'Text',
];
const COLOURS = ['amber', 'cyan', 'gray', 'green', 'red', 'slate'];

const NAMES = /\.rt-([A-Z]\w*)/g;
const isUsed = (name: string) => COMPONENTS.some((component) => name.startsWith(component));
const namesOf = (selector: string) => [...selector.matchAll(NAMES)].map((found) => found[1] ?? '');

/** What is for a window of some width. Only lists of facts have use of that. */
const isForWidth = (selector: string) => /\\:-?rt-/.test(selector) && !selector.includes('sm\\:rt-r-orientation');

/** The variant with shadows, which the page does not use. */
const isClassic = (selector: string) => selector.includes('.rt-variant-classic');

/** Another colour or variant, a margin below zero, or a component that the page does not use. */
function isUnused(selector: string): boolean {
  const colour = /data-(?:accent|gray)-color='(\w+)'/.exec(selector)?.[1];
  if (colour !== undefined && !COLOURS.includes(colour)) return true;
  return isForWidth(selector) || isClassic(selector) || selector.startsWith('.-rt-') || !namesOf(selector).every(isUsed);
}

/** Colours outside sRGB are left out: the contrast of the others is the one that is tested. */
const isWide = (node: ChildNode) => node.type === 'atrule' && node.name === 'supports' && node.params.includes('display-p3');

function keepUsed(rule: Rule) {
  // What stands in a rule is kept with it.
  if (rule.parent?.type === 'rule' || (rule.parent?.type === 'atrule' && /keyframes/.test((rule.parent as { name?: string }).name ?? ''))) return;
  const used = rule.selectors.filter((selector) => !isUnused(selector));
  if (used.length > 0) rule.selectors = used;
  else rule.remove();
}

export function radixStyles(): Plugin {
  const left = new Set<string>();
  return {
    name: 'radix-styles',
    enforce: 'pre',
    transform(code, id) {
      if (!STYLES.test(id)) return undefined;
      // The scroll area comes with the module of the tables, whose other parts are used.
      for (const name of namesOf(code)) if (!isUsed(name) && !name.startsWith('ScrollArea')) left.add(name);
      const root = postcss.parse(code);
      root.walkAtRules((node) => void (isWide(node) && node.remove()));
      root.walkRules(keepUsed);
      root.walkAtRules((node) => void (node.nodes?.length === 0 && node.remove()));
      return { code: root.toString(), map: null };
    },
    generateBundle(_, bundle) {
      for (const chunk of Object.values(bundle))
        for (const [, name] of chunk.type === 'chunk' ? chunk.code.matchAll(/\brt-([A-Z]\w*)/g) : [])
          if (name && left.has(name)) this.error(`radix-styles.ts leaves out the styles of ${name}, which ${chunk.fileName} uses`);
    },
  };
}
