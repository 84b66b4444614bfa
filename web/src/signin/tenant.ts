/** The page of one tenant is `/?tenant=…`. It offers the providers of this tenant, too. */
export const tenantOfPage = () => new URLSearchParams(window.location.search).get('tenant') ?? '';

/** The page's address without what a provider or a link added to it. */
export function pageAddress(): string {
  const tenant = tenantOfPage();
  return window.location.pathname + (tenant && `?tenant=${encodeURIComponent(tenant)}`);
}
