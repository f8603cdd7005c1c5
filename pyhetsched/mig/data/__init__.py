"""Tables of GPU models; read by :mod:`pyhetsched.mig.profiles`."""
