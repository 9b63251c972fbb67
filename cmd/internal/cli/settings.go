package cli

import (
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"
)

// Hidden replaces a secret.
const Hidden = "***"

// Settings returns all flag values of the called command without secrets (see [Mask]).
// For values other than texts, lists of texts, numbers and switches, it only reports that
// they are set.
func Settings(parsed *kong.Context) map[string]string {
	values := map[string]string{}
	for at := parsed.Selected(); at != nil; at = at.Parent {
		for _, f := range at.Flags {
			if !f.Hidden && f.Name != "help" && f.Name != "version" {
				values[f.Name] = setting(f)
			}
		}
	}
	return values
}

func setting(f *kong.Flag) string {
	v := f.Target
	switch v.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int64:
		return fmt.Sprint(v.Interface())
	case reflect.String:
		return Mask(v.String())
	case reflect.Slice:
		if list, ok := v.Interface().([]string); ok {
			return Mask(strings.Join(list, ", "))
		}
	}
	if v.IsZero() {
		return ""
	}
	return "set"
}

// secrets match tokens, keys, and passwords in addresses.
var secrets = []struct {
	shape *regexp.Regexp
	with  string
}{
	{regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(-----END [A-Z ]*PRIVATE KEY-----)?`), Hidden},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]+)*`), Hidden},                                        // JWT
	{regexp.MustCompile(`\bS[ACNOUX][A-Z2-7]{40,}`), Hidden},                                                         // seed of an nkey
	{regexp.MustCompile(`(://)[^/\s"?#]+@`), "${1}" + Hidden + "@"},                                                  // user, and password, which may contain ' and @
	{regexp.MustCompile(`(?i)\b([a-z_]*(?:token|tkn|secret|password))=[^&\s"']+`), "${1}=" + Hidden},                 // queries and logs
	{regexp.MustCompile(`(?i)("[a-z_]*(?:token|secret|password)"\s*:\s*)"(?:[^"\\]|\\.)*"`), `${1}"` + Hidden + `"`}, // JSON
	{regexp.MustCompile(`(?i)\b(bearer[ .])[A-Za-z0-9._~+/=-]+`), "${1}" + Hidden},                                   // headers
	{regexp.MustCompile(`(/(?:s|setup|device)#)[^\s"']+`), "${1}" + Hidden},                                          // links of the relay's own
}

// Mask returns a text with everything hidden that looks like a secret.
func Mask(text string) string {
	if u, err := url.Parse(text); err == nil && u.Host != "" && u.RawQuery != "" {
		text = strings.Replace(text, "?"+u.RawQuery, "?"+Hidden, 1)
	}
	for _, s := range secrets {
		text = s.shape.ReplaceAllString(text, s.with)
	}
	return text
}
