-- Tokens of the input that the provider had kept from an earlier request. They are part of `input_tokens`. A release that
-- does not know the columns counts none.
alter table runs add column cached_input_tokens bigint not null default 0;
alter table usage add column cached_input_tokens bigint not null default 0;
alter table usage_additions add column cached_input_tokens bigint not null default 0;
