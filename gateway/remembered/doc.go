// Package remembered stores the last states of hosts, which are encrypted (package remember),
// in a store that relays share.
//
// Each record is one message of the stream:
//
//	ahp.relays.v1.remembered.s.<tenant>.<host>.<ID>   remember.Record in JSON
//
// Each relay keeps the size and time of all records in memory, but not their content. One relay
// gets each request of a host-agent.
//
// # Quotas
//
// If a host's records exceed the host's quota or [remember.MaxRecords], its oldest records are
// removed, except the list of sessions. If they exceed the tenant's quota, the same host's
// oldest records are removed too. A record that would still not fit is refused, and none is
// removed for it. A tenant whose records, with those removed in the last minutes, take as much room in
// the stream as is free, gets no further record. So a host cannot displace another host's records. Only
// if all tenants together exceed [MaxBytes], the oldest records of all are removed. Records of hosts that the registry has
// forgotten are removed within a minute.
package remembered
