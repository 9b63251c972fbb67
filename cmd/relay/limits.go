package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/gateway/admission"
)

// limitFlags limit clients and host-agents.
type limitFlags struct {
	LimitAddress  map[string]int `help:"Limit at this relay for all connections from one address, except loopback: ${limits}. 0 is no limit." placeholder:"LIMIT=N,..." mapsep:","`
	LimitSubject  map[string]int `help:"Limit for all connections of one subject." placeholder:"LIMIT=N,..." mapsep:","`
	LimitToken    map[string]int `help:"Limit for all connections that use the same token." placeholder:"LIMIT=N,..." mapsep:","`
	LimitHost     map[string]int `help:"Limit for all connections to one host." placeholder:"LIMIT=N,..." mapsep:","`
	LimitTenant   map[string]int `help:"Limit for all connections of one tenant." placeholder:"LIMIT=N,..." mapsep:","`
	LimitHosts    map[string]int `help:"Limit for a tenant's connected host-agents in the whole cluster. * stands for every tenant that is not named. 0 is no limit. Default: no limit." placeholder:"TENANT=N,..." mapsep:","`
	LimitFailures int            `help:"Requests without a valid token that one address may send in a minute. 0 is no limit." default:"120" least:"0" placeholder:"N"`
}

var limitNames = map[string]func(*admission.Limit) *int{
	"connections": func(l *admission.Limit) *int { return &l.Connections },
	"pending":     func(l *admission.Limit) *int { return &l.Pending },
	"frames":      func(l *admission.Limit) *int { return &l.Frames },
	"bytes":       func(l *admission.Limit) *int { return &l.Bytes },
	"opens":       func(l *admission.Limit) *int { return &l.Opens },
}

const limitHelp = "connections, pending (connections that wait for their host), frames and bytes (sent in a second), opens (new connections in a second)"

func (f *limitFlags) limits() (l admission.Limits, err error) {
	for _, party := range []struct {
		flag string
		from map[string]int
		to   *admission.Limit
	}{
		{"--limit-address", f.LimitAddress, &l.Address}, {"--limit-subject", f.LimitSubject, &l.Subject},
		{"--limit-token", f.LimitToken, &l.Token}, {"--limit-host", f.LimitHost, &l.Host}, {"--limit-tenant", f.LimitTenant, &l.Tenant},
	} {
		for name, n := range party.from {
			field := limitNames[name]
			if field == nil {
				return l, fmt.Errorf("%s: unknown limit %q; want one of %s", party.flag, name, strings.Join(slices.Sorted(maps.Keys(limitNames)), ", "))
			}
			if n < 0 {
				return l, fmt.Errorf("%s: %s=%d; want 0 for no limit, or more", party.flag, name, n)
			}
			*field(party.to) = orNone(n)
		}
	}
	for tenant, n := range f.LimitHosts {
		if err := ahp.CheckName("--limit-hosts: tenant", tenant); tenant != "*" && err != nil {
			return l, err
		}
		if n < 0 {
			return l, fmt.Errorf("--limit-hosts: %s=%d; want 0 for no limit, or more", tenant, n)
		}
	}
	l.Failures = orNone(f.LimitFailures)
	return l, nil
}

// orNone translates a flag's 0 (no limit) into the gateway's value.
func orNone(n int) int {
	if n <= 0 {
		return -1
	}
	return n
}
