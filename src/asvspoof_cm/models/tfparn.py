"""tfparn"""
