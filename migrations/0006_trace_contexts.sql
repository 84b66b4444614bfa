-- The span in which a run or a request for approval was made, as W3C Trace Context: whichever replica goes on with it
-- goes on with the same trace. Null without traces.
alter table runs add column trace json;
alter table approvals add column trace json;
