package refhost

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"ahprelay/ahp"
)

// A version is a protocol version.
type version struct{ major, minor, patch int }

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v.major, v.minor, v.patch) }

func (v version) compare(w version) int {
	return cmp.Or(cmp.Compare(v.major, w.major), cmp.Compare(v.minor, w.minor), cmp.Compare(v.patch, w.patch))
}

// The protocol versions that the host speaks, newest first.
var hostVersions = []version{{0, 9, 0}, {0, 8, 0}}

// actionSince holds the actions that not every version of hostVersions knows:
// a client of an older version is not sent them.
var actionSince = map[string]version{actionUsage: {0, 9, 0}}

// knows reports whether an action can be sent to a client of version v.
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

// satisfies reports whether a host of version v can serve a client that wants
// ^want: the same 0.minor (or major, from 1 on), and nothing newer.
func (v version) satisfies(want version) bool {
	if v.major != want.major || v.major == 0 && v.minor != want.minor {
		return false
	}
	return v.compare(want) >= 0
}

// negotiate returns the highest of the offered versions that the host speaks.
func negotiate(offered []string) (version, error) {
	var best version
	found := false
	for _, s := range offered {
		v, ok := parseVersion(s)
		if !ok || !slices.ContainsFunc(hostVersions, func(own version) bool { return own.satisfies(v) }) {
			continue
		}
		if !found || v.compare(best) > 0 {
			best, found = v, true
		}
	}
	if !found {
		return version{}, unsupportedVersion(offered)
	}
	return best, nil
}

func unsupportedVersion(offered []string) error {
	supported := make([]string, len(hostVersions))
	for i, v := range hostVersions {
		supported[i] = "^" + v.String()
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
