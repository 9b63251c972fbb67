package link

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"

	"ahprelay/ahp"
)

// Subjects of a host, after "ahp.v1.<tenant>.<host>.":
//
//	chan.<channel>                       bodies from the host-agent; copies of notifications from relays
//	link.<agent>.<relay>.up              numbered stream, host-agent to relay
//	link.<agent>.<relay>.down            numbered stream, relay to host-agent
//	ctl.lease, ctl.lease.<relay>         presence and lease, host-agent asks any relay or one relay
//	ctl.…                                see packages notice, remember, waiting and wake
//	inbox.<agent>.…                      answers to the host-agent's requests
const subjectRoot = "ahp.v1."

// HostPrefix returns "ahp.v1.<tenant>.<host>.", the prefix of all subjects of a host.
func HostPrefix(tenant, host string) string {
	return subjectRoot + tenant + "." + host + "."
}

// ChannelSubject returns the subject of a channel's bodies. Token is the channel as a
// NATS token.
func ChannelSubject(tenant, host, token string) string {
	return HostPrefix(tenant, host) + "chan." + token
}

func linkSubject(tenant, host, agent, relay, direction string) string {
	return HostPrefix(tenant, host) + "link." + agent + "." + relay + "." + direction
}

// TenantOf returns the tenant of a host's subject, or "" for other subjects.
func TenantOf(subject string) string {
	rest, ok := strings.CutPrefix(subject, subjectRoot)
	tenant, _, more := strings.Cut(rest, ".")
	if !ok || !more {
		return ""
	}
	return tenant
}

func relayOf(subject string) (string, error) {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 8 || tokens[4] != "link" {
		return "", fmt.Errorf("subject %q is no link subject", subject)
	}
	if err := ahp.CheckName("relay instance", tokens[6]); err != nil {
		return "", err
	}
	return tokens[6], nil
}

// NewInstance returns a random instance name for a process: 13 letters and digits
// with 65 random bits.
func NewInstance() string {
	var b [10]byte
	rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))[:13]
}
