package canvas

import (
	"fmt"
	"net"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Shares returns an error text if the relay's own name is in the registrable domain of the
// canvas domain, and otherwise "". A canvas's scripts can set cookies for all parent domains
// up to the registrable domain, and browsers treat all pages below that domain as the same
// site. So it is unsafe for the relay, or any other site, to share this domain.
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
