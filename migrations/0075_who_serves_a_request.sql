-- A replica that is killed cannot say that the client of a request lost its connection with it.
alter table request_keys
  -- the replica that holds the connection of the client
  add column served_by uuid,
  -- until when it says so; null once the client has its answer
  add column served_until timestamptz;
