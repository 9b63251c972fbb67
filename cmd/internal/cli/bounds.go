package cli

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// checkBounds checks the values of flags by tags. least and most are a flag's lowest and highest value, such as least:"1s". with names the flags of
// which at least one must be set, because the flag has no effect otherwise. A flag that is zero and has no default is not set.
func checkBounds(flags []*kong.Flag) error {
	for _, f := range flags {
		if f.Target.IsZero() && !f.HasDefault {
			continue
		}
		for _, tag := range []string{"least", "most"} {
			text := f.Tag.Get(tag)
			if text == "" {
				continue
			}
			bound, err := number(text, f.Target.Type())
			if err != nil {
				return err
			}
			if value := f.Target.Int(); tag == "least" && value < bound || tag == "most" && value > bound {
				return fmt.Errorf("--%s is %v; want at %s %s", f.Name, f.Target.Interface(), tag, text)
			}
		}
		if with := f.Tag.Get("with"); with != "" {
			gives := func(other *kong.Flag) bool {
				return !other.Target.IsZero() && slices.Contains(strings.Split(with, ","), other.Name)
			}
			if !slices.ContainsFunc(flags, gives) {
				return fmt.Errorf("--%s has no effect without --%s: give both, or neither", f.Name, strings.ReplaceAll(with, ",", " or --"))
			}
		}
	}
	return nil
}

func number(text string, as reflect.Type) (int64, error) {
	if as == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		return int64(d), err
	}
	return strconv.ParseInt(text, 10, 64)
}
