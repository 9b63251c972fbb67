package agenthost

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"ahprelay/ahp"
)

// A Protocol is a host's native version and the versions it accepts.
type Protocol string

// The supported protocols; see the package documentation.
const (
	Protocol08  Protocol = "0.8"
	Protocol09  Protocol = "0.9"
	Protocol010 Protocol = "0.10"
	Protocol10  Protocol = "1.0"
	Protocol11  Protocol = "1.1"

	// NewestProtocol is the newest protocol.
	NewestProtocol = Protocol11
)

// A dialect holds a [Protocol]'s rules.
type dialect struct {
	// own lists the versions named by the host, newest first.
	own []version

	// Hosts with wide accept every version since 1.0.0 with the major version of one
	// of their own versions, or the same 0.minor; other hosts accept no version above
	// their own. Wide hosts refuse an offer that contains a malformed version, and
	// close the connection after a refusal.
	wide bool

	windows    bool // channel/frame with credit, and reconnect with windows
	perChannel bool // reconnect with a cursor for each channel
}

var dialects = map[Protocol]dialect{
	Protocol08:  {own: []version{{0, 8, 0}}},
	Protocol09:  {own: []version{{0, 9, 0}, {0, 8, 0}}},
	Protocol010: {own: []version{{0, 10, 0}}},
	Protocol10:  {own: []version{{1, 0, 0}, {0, 9, 0}}, wide: true},
	Protocol11:  {own: []version{{1, 1, 0}, {1, 0, 0}, {0, 9, 0}}, wide: true, windows: true, perChannel: true},
}

// registers reports whether the host has canvases in the form since 0.10.
func (d dialect) registers() bool { return d.own[0].compare(canvasesRegistered) >= 0 }

// seeds reports whether the host has canvases in the form before 0.10.
func (d dialect) seeds() bool { return d.own[len(d.own)-1].compare(canvasesRegistered) < 0 }

// A version is a protocol version.
type version struct{ major, minor, patch int }

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v.major, v.minor, v.patch) }

func (v version) compare(w version) int {
	return cmp.Or(cmp.Compare(v.major, w.major), cmp.Compare(v.minor, w.minor), cmp.Compare(v.patch, w.patch))
}

var (
	// lifecycleSince is the first version with terminal lifecycles.
	lifecycleSince = version{0, 9, 0}

	// canvasesRegistered is the first version with canvases in AHP.
	canvasesRegistered = version{0, 10, 0}

	// firstStable is the first version with moveChat, and with chats in summaries.
	firstStable = version{1, 0, 0}
)

// actionSince maps newer actions to their first version. Clients with an older
// version do not receive them.
var actionSince = map[string]version{
	actionUsage:              {0, 9, 0},
	"session/chatsReordered": firstStable,
}

// knows reports whether clients with version v know an action.
func (v version) knows(action string) bool {
	since, ok := actionSince[action]
	return !ok || v.compare(since) >= 0
}

var versionPattern = regexp.MustCompile(`^(\d{1,6})\.(\d{1,6})\.(\d{1,6})$`)

func parseVersion(s string) (version, bool) {
	m := versionPattern.FindStringSubmatch(s)
	if m == nil {
		return version{}, false
	}
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(m[i+1]) // at most six digits
	}
	return version{n[0], n[1], n[2]}, true
}

// accepts reports whether the host serves an offered version: its major version, or
// its 0.minor, must be that of one of the host's own versions. Only wide hosts accept
// a newer version than their own.
func (d dialect) accepts(offered version) bool {
	return slices.ContainsFunc(d.own, func(own version) bool {
		sameLine := own.major == offered.major && (own.major > 0 || own.minor == offered.minor)
		return sameLine && (d.wide || own.compare(offered) >= 0)
	})
}

// negotiate returns the highest acceptable version of an offer.
func (d dialect) negotiate(offered []string) (version, error) {
	var best version
	found := false
	for _, s := range offered {
		v, ok := parseVersion(s)
		if !ok && d.wide {
			return version{}, d.unsupported(offered)
		}
		if ok && d.accepts(v) && (!found || v.compare(best) > 0) {
			best, found = v, true
		}
	}
	if !found {
		return version{}, d.unsupported(offered)
	}
	return best, nil
}

// unsupported returns the error for an offer without an acceptable version. Wide
// hosts list versions in it, other hosts ranges.
func (d dialect) unsupported(offered []string) error {
	supported := make([]string, len(d.own))
	for i, v := range d.own {
		supported[i] = v.String()
		if !d.wide {
			supported[i] = "^" + supported[i]
		}
	}
	return &rpcError{
		Code: ahp.CodeUnsupportedProtocolVersion,
		Message: fmt.Sprintf("Client offered protocol versions [%s], none of which this server speaks (server accepts %s).",
			strings.Join(offered, ", "), strings.Join(supported, ", ")),
		Data: struct {
			SupportedVersions []string `json:"supportedVersions"`
		}{supported},
	}
}
