// Package wake lets a host-agent wake the machine of a different host in the same network.
//
// # Consent
//
// Each host-agent reports its [Terms] with its presence; relays keep the last terms of an
// unreachable host. Both owners must agree. The owner of the sleeping host names the hosts which
// may wake it (host-agent run --wake-by), and the owner of the waking host names the sleeping one
// (--wake-for). Otherwise relays send no order. A machine's hardware addresses are reported only
// with --wake-by.
//
// # Orders
//
// A relay publishes a signed [Order] (auth.Signed) to ahp.v1.<tenant>.<host>.ctl.wake.<agent>. It repeats the
// order until the sleeping host is online or the attempt is over, because each packet on the network
// may be lost. The host-agent checks that a trusted relay has signed the order (auth.WakeOrder), and
// that the order is newer than the last with the same key. The host-agent does not answer: the relay
// sees when the host is online.
package wake
