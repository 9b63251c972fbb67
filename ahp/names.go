package ahp

import "fmt"

// MaxNameLen bounds the name of a tenant, a host or a process instance, in bytes.
const MaxNameLen = 63

// CheckName reports why s cannot name a tenant, a host or a process instance: a name
// matches [a-z0-9-]{1,63}, so it is a single NATS token, URL path segment and DNS
// label. The error begins with the argument what, such as "host".
func CheckName(what, s string) error {
	if s == "" {
		return fmt.Errorf("%s is empty; want 1 to %d of a-z, 0-9 and -", what, MaxNameLen)
	}
	if len(s) > MaxNameLen {
		return fmt.Errorf("%s is %d bytes long; want at most %d", what, len(s), MaxNameLen)
	}
	for i, c := range []rune(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("%s %q has %q at position %d; want only a-z, 0-9 and -", what, s, c, i+1)
		}
	}
	return nil
}
