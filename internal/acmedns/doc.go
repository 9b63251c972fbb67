// Package acmedns obtains certificates from an ACME authority (RFC 8555). It proves control
// over the names with DNS records (DNS-01), because only this method permits wildcard
// certificates and needs no incoming connection.
//
// certmagic orders, stores and renews the certificates. A [Provider] sets the records:
//
//   - exec: the operator's program, called as
//
//     PROGRAM present _acme-challenge.canvas.example.com. VALUE
//     PROGRAM cleanup _acme-challenge.canvas.example.com. VALUE
//
//     lego's exec provider has the same interface, so programs for nearly all DNS services
//     exist. The program returns when the service has accepted the record.
//
//   - rfc2136: a DNS server with dynamic updates (RFC 2136), signed with a key (TSIG, RFC
//     8945), such as BIND, Knot or PowerDNS.
//
// There are no further providers, because each needs a library of its own, and none could be
// tested here.
//
// Each relay of a cluster has its own certificates, in its data directory.
package acmedns
