package main

import (
	"fmt"
	"path/filepath"
)

// chart packs the Helm chart.
func (r *release) chart() error {
	files, err := read(filepath.Join(r.root, "packaging", "helm", "ahp-relay"))
	if err != nil {
		return err
	}
	data, err := r.tarOf("ahp-relay/", files, 0)
	if err != nil {
		return err
	}
	packed, err := gzipped(data)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("ahp-relay-chart-%s.tgz", r.version), packed)
}
