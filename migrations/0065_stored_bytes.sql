-- How much a user has stored on a day: messages, what tools brought back, attachments. A release that does not know the
-- column counts nothing, and nothing that it counts is lost.
alter table usage add column bytes bigint not null default 0;
alter table usage_additions add column bytes bigint not null default 0;
-- What one user has added is asked with each message.
create index usage_additions_of_user on usage_additions (tenant_id, user_id, day);
-- An attachment that no message names is deleted after an hour. Those of a release that does not know the column stay.
alter table attachments add column named boolean not null default true;
create index attachments_unnamed on attachments (tenant_id, id) where not named;
