-- The setting (`server_settings.id`) that a secret was typed for: the secret is removed with it.
alter table secrets add column setting_id uuid;
