package link

import "math"

// Recheck returns a message that makes a host-agent instance check its lease at once,
// and the message's subject. The message is a hello with the highest possible lease
// number. It changes nothing else at the host-agent, so it needs no proof.
func Recheck(tenant, host, agent, relay string) (subject string, packet []byte) {
	offer := Hello{Epoch: math.MaxUint64, Fence: math.MaxUint64, Wire: [2]int{WireMin, WireMax}, Credit: 1, MaxFrame: 1}
	return linkSubject(tenant, host, agent, relay, "down"), appendHello(helloHello, offer)
}
