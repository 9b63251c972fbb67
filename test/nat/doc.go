// Package nat tests a host behind a router that translates addresses. Real processes
// run in network namespaces.
//
//	client ns ── relay ns (public) ── router ns (masquerades, drops what comes in) ── home ns (host-agent, host)
package nat
