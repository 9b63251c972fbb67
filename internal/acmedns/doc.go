// Package acmedns gets certificates from an authority that speaks ACME (RFC 8555), and
// shows it by records in DNS (DNS-01) that the relay answers for the names: the only way
// to a certificate for all names below a domain, and one that needs no way in.
//
// certmagic orders, keeps and renews them. Where records are set is a [Provider]'s:
//
//   - exec: a program of the operator's, which is run as
//
//     PROGRAM present _acme-challenge.canvas.example.com. VALUE
//     PROGRAM cleanup _acme-challenge.canvas.example.com. VALUE
//
//     as lego's provider of that name runs it, so programs for nearly all DNS services
//     exist. It returns when the service has taken the record.
//
//   - rfc2136: a DNS server that takes updates (RFC 2136) signed with a key (TSIG, RFC
//     8945), such as BIND, Knot or PowerDNS.
//
// There are no others in the binary: each service has an interface and a library of its
// own, and none of them could be tested here.
//
// Certificates are in the data directory of each relay. The relays of a cluster get one
// each.
package acmedns
