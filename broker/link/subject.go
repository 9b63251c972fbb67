package link

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"strings"

	"ahprelay/ahp"
)

// Subjects of one host, below "ahp.v1.<tenant>.<host>.":
//
//	chan.<channel>                       bodies, published once by the host-agent
//	link.<agent>.<relay>.up              numbered stream, host-agent to relay
//	link.<agent>.<relay>.down            numbered stream, relay to host-agent
//	ctl.lease                            presence and lease, host-agent asks relays
//	inbox.<agent>.…                      answers to the host-agent's requests
const subjectRoot = "ahp.v1."

// HostPrefix returns "ahp.v1.<tenant>.<host>.", the prefix of all subjects of a host.
func HostPrefix(tenant, host string) string {
	return subjectRoot + tenant + "." + host + "."
}

// ChannelSubject returns the subject of the bodies of one channel, given as a NATS
// token.
func ChannelSubject(tenant, host, token string) string {
	return HostPrefix(tenant, host) + "chan." + token
}

func linkSubject(tenant, host, agent, relay, direction string) string {
	return HostPrefix(tenant, host) + "link." + agent + "." + relay + "." + direction
}

// TenantOf returns the tenant in a subject of a host, or "" for other subjects.
func TenantOf(subject string) string {
	rest, ok := strings.CutPrefix(subject, subjectRoot)
	tenant, _, more := strings.Cut(rest, ".")
	if !ok || !more {
		return ""
	}
	return tenant
}

// relayOf returns the relay instance in a link subject.
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

// NewInstance returns a random name for one run of a process: 13 letters and digits,
// 65 bits.
func NewInstance() string {
	var b [10]byte
	rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))[:13]
}
