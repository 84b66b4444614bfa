-- The form that the answer of a run must have: JSON, perhaps with a schema. Absent: free text. A release that does not know
-- the column answers with text.
alter table runs add column answer_format json;
