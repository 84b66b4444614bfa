-- On which way the call of a request came; conditions of rules may ask it. The previous release writes none.
alter table approvals add column origin text not null default 'chat';
