// Package wake is for waking the machine of a host by a host-agent on the same network.
//
// # Consent
//
// Each host-agent reports its [Terms] with its presence, and relays keep the last ones of a host
// that is away. The owner of the sleeping host has named the hosts that may wake it
// (host-agent run --wake-by), and the owner of the host that wakes has named the sleeping one
// (--wake-for). Without both, relays send no order. The hardware addresses of a machine are
// reported only with --wake-by.
//
// # Orders
//
// A relay publishes a [Signed] [Order] to ahp.v1.<tenant>.<host>.ctl.wake.<agent>, again and again
// until the sleeping host is online or the attempt is over: each packet on a network may be
// lost. The host-agent checks that a trusted relay has signed it (auth.WakeOrder), and that the order is
// newer than the last one with the same key. It does not answer; the return of the host is the
// answer.
package wake
