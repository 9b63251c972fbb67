// Package nat tests the relay across a router that translates addresses, with
// real processes in network namespaces.
//
//	client ns ── relay ns (public) ── router ns (masquerades, drops what comes in) ── home ns (host-agent, host)
package nat
