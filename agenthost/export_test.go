package agenthost

// Serve serves a connection of the tests.
func (h *Host) Serve(l link) error { return h.serve(l) }
