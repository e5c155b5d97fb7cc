"""rawnet2"""
