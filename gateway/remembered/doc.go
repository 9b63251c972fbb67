// Package remembered keeps the sealed last states of hosts at the relays (package
// remember), in a store that relays share.
//
// Each record is one message of the stream:
//
//	ahp.relays.v1.remembered.s.<tenant>.<host>.<ID>   remember.Record in JSON
//
// A relay's memory has the size and time of each record, and no content. One relay
// gets each request of a host-agent.
//
// # Quotas
//
// Above the quota of its host, or above [remember.MaxRecords], the host's oldest records are
// removed; the list stays. Above the quota of its tenant, the same host's oldest records
// are removed, and a record that still does not fit is refused: no host displaces a different
// host's records. Records of hosts that the registry has forgotten are removed within a minute.
package remembered
