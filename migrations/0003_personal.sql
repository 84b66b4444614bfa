-- The generation of which the user was told that it needs their attention: once.
alter table credentials add column told_generation bigint not null default 0;
