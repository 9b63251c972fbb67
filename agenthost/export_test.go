package agenthost

// Serve lets tests of another package serve a connection.
func (h *Host) Serve(l link) error { return h.serve(l) }
