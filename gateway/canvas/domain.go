package canvas

import (
	"fmt"
	"net"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Shares returns what is wrong with the canvas domain for a relay that clients reach by a name, "" if nothing is. Scripts of a
// canvas can set cookies for each domain above their own name up to the registrable one, and pages below one
// registrable domain are same-site to browsers: so it is to be no other's, the relay's least of all.
func (o Origin) Shares(relay string) string {
	relay = strings.ToLower(strings.TrimSuffix(relay, "."))
	local := o.Domain == "localhost" || strings.HasSuffix(o.Domain, ".localhost")
	if local || relay == "" || net.ParseIP(strings.Trim(relay, "[]")) != nil {
		return ""
	}
	const want = "give canvases a registrable domain of their own, or one on the public suffix list"
	if o.Domain == relay || strings.HasSuffix(o.Domain, "."+relay) {
		return fmt.Sprintf("the canvas domain %s is below the relay's domain %s: scripts of canvases can set cookies for the relay; %s", o.Domain, relay, want)
	}
	if suffix, _ := publicsuffix.PublicSuffix(o.Domain); suffix == o.Domain {
		return ""
	}
	site, err := publicsuffix.EffectiveTLDPlusOne(o.Domain)
	if err == nil && (relay == site || strings.HasSuffix(relay, "."+site)) {
		return fmt.Sprintf("the canvas domain %s shares its registrable domain %s with the relay at %s: scripts of canvases can set cookies for the relay; %s", o.Domain, site, relay, want)
	}
	return ""
}
